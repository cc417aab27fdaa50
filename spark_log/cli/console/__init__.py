"""The console: web pages that show a log.  `site.py` answers in JSON, `http_routes.py` over HTTP; pages: `static/`."""

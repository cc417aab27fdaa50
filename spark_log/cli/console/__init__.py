"""The console: web pages that show a log.  Answers, as JSON: `site.py`; HTTP: `http_routes.py`; the pages: `static/`."""

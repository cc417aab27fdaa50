"""The console: web pages that show a log.  `site.py` has the answers as JSON, `port.py` the HTTP, `static/` the pages."""

"""The console: web pages that show a log.  Answers, as JSON: `site.py`; HTTP: `port.py`; the pages: `static/`."""

"""The page at `/`: try the served models in a browser, compare precisions, and copy the request.

browser ──▶ routes ──▶ PageModels ──▶ predictions ──▶ display: JSON for the page's scripts
   ▲
   └── StaticFiles: HTML, styles and ES modules, as they lie in static/
"""

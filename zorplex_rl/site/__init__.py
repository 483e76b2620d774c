"""The course as static pages: every notebook run, checked, and readable without a network, a kernel or a server.

    notebooks/*.py ──export──► raw page ──read──► cells, widgets ──verify──► render ──► site/*.html, index.html, site.zip
                   (marimo)

    export.py    runs one notebook; the page that marimo makes of it
    page.py      what that page says: cells, outputs, widget states, the lesson's facts; what is wrong with it
    render.py    cells as plain HTML: text and figures are there at once, before any script
    frame.py     the whole of a page: head, navigation, style; the contents page
    widgets.js   draws the widgets with the state that the run has left, as a kernel would
    build.py     all of it, in order

marimo's own front end is left out: it is 27 MB of scripts that need a server, draw the text only once they have run, and show controls
that no kernel answers. What is left of a page without it is its content, and the widgets bring their own code.

``python -m zorplex_rl.site`` is what ``./build_site.sh`` calls.
"""

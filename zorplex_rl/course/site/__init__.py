"""Publish the course as static pages: run and check every notebook; the pages need no network,
kernel or server.

    notebooks/*.py ──export──► raw page ──read──► cells, widgets ──verify──► render ──► site/*.html, index.html, site.zip
                   (marimo)

    export.py    run one notebook and return the page that marimo writes
    page.py      read that page: cells, outputs, widget states, the lesson's facts; report what cannot be published
    render.py    turn cells into plain HTML, so that text and figures appear before any script runs
    outline.py   name the headings, list the sections
    frame.py     assemble a whole page: head, navigation, style; also contents and glossary
    contents.py  collect what the contents page says of every notebook, from the notebook's own page
    reference.py build the page that compares other stacks
    search.py    build the page that searches all others, with Pagefind
    widgets.js   draw the widgets in the state that the run left
    build.py     do all of this in order

The pages do not use marimo's own front end. It is 27 MB of scripts that need a server, show text
only after they have run, and show controls that no kernel answers. The pages keep the content, and
the widgets bring their own code.

``python -m zorplex_rl.course.site`` is what ``./build_site.sh`` calls.
"""

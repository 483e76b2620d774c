"""Draw what the notebooks show: plain data in, SVG or HTML out."""

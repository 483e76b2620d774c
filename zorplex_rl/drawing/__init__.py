"""Draw the two figures of a run, and what every figure shares: colours, axes, SVG."""

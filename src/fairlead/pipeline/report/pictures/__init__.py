"""Pictures of the report: a frame in, an SVG with selectable text out."""

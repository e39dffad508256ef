"""The pictures of the report: a frame in, an SVG with text as text out."""

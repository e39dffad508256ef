"""Pictures of the report: functions that turn a DataFrame into an SVG with selectable text."""

"""Pure algorithms: values in, values out. No I/O, no clock, no asyncio."""

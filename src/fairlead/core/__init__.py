"""Pure algorithms: values in, values out. No I/O, no clock of their own, no asyncio."""

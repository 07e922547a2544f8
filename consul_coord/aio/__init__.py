"""The world of event loops: the driver that runs programs on asyncio or trio, and the facades over them."""

__version__ = "2.0.0a0+git0000000"

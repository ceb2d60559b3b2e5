"""inverseflow: denoise scientific data without any clean example.

The public names are listed in `__init__.pyi` and imported when they are first used, so that `import inverseflow` alone
costs no torch.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

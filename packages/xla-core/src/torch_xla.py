"""Found by `import torch_xla` only where the folder `torch_xla` beside this file has lost its `__init__.py`: says what to run.

PyTorch/XLA's own wheel had a file of that name, which pip removes with it, whoever wrote it last.
"""

from xla_core.base.installation import check

check()

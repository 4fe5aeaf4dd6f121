"""The public functions that work on folders and models, with the words of the shell: each command calls its function.

`compress`, `quantize`, `sparsify` and `heal` are in `slimformer.compress`; here are the arrows between calibration and
a result one by one, and what looks at models or hands them on. All of them are names of `slimformer` itself.
"""

import transformers as transformers  # before what `import slimformer` teaches it is imported from here

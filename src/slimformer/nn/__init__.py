"""Modules that stock architectures lack."""

# Before any file of this folder: `import slimformer` does its part as soon as transformers is imported, and imports
# these files for it. Were one of them the first to import transformers, it would be asked for what it has not defined.
import transformers as transformers

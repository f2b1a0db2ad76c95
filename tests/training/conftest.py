import os

os.environ["VERL_USE_EXTERNAL_MODULES"] = "mia.training.cpu"  # before verl is imported, as in every process of a run

"""Unit tests need one thread: the models are tiny."""

import torch

torch.set_num_threads(1)

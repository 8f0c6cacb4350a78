# Stands in for Hugging Face's transformers, which is not a Debian package: only what modeling_thinpipe.py imports, with
# only what the test needs of it.

from torch import nn


class PretrainedConfig:
    def __init__(self, **kwargs):
        for name, value in kwargs.items():
            setattr(self, name, value)


class GenerationMixin:
    pass


class PreTrainedModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def post_init(self):
        self.apply(self._init_weights)

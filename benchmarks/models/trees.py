"""Well-known models as trees of structs, by name."""

from .decoders import gemma, gpt2, gpt_j, gpt_neo, llama, mistral, mixture, opt
from .encoder_decoders import bart, t5, t5_v1_1, whisper
from .encoders import bert, clip, mnist_cnn, multi_head_attention, roberta, vit

ZOO = {
    make.__name__: make
    for make in (
        llama, mistral, gemma, mixture, gpt_j, gpt_neo, opt, t5, t5_v1_1, bart, clip, mnist_cnn,
        gpt2, bert, roberta, vit, whisper, multi_head_attention,
    )
}  # fmt: skip

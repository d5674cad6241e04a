"""Models of torchvision, timm and transformers with random weights, as both of torch's exporters write them.

    python models.py FOLDER [--models resnet50,bert] [--exporters torchscript,dynamo]

Each becomes `FOLDER/NAME.EXPORTER/` with `model.onnx` and `test_data_set_0/input_K.pb`, as in the ONNX test suite. What is there
already is not made again. A model that cannot be exported is named with the reason, and the others go on.
"""

import argparse
import pathlib
import sys
import warnings

EXPORTERS = ("torchscript", "dynamo")
OPSET = 18


def image(size=224, batch=1):
    import torch

    return {"image": torch.randn(batch, 3, size, size)}


def vision(name, size=224):
    """A model of torchvision."""

    def build():
        import torchvision

        return torchvision.models.get_model(name, weights=None), image(size)

    return build


def segmentation(name, size=224):
    def build():
        import torch
        import torchvision

        class Scores(torch.nn.Module):
            def __init__(self):
                super().__init__()
                models = torchvision.models.segmentation
                self.model = getattr(models, name)(weights=None, weights_backbone=None)

            def forward(self, image):
                return self.model(image)["out"]

        return Scores(), image(size)

    return build


def timm(name, size=224):
    """A model of timm."""

    def build():
        import timm

        return timm.create_model(name, pretrained=False, exportable=True), image(size)

    return build


def transformer(attention, configuration, head="AutoModel", length=128, **sizes):
    """A model of transformers over the tokens of a text, without a cache."""

    def build():
        import torch
        import transformers

        config = getattr(transformers, configuration)(**sizes)
        if hasattr(config, "use_cache"):
            config.use_cache = False

        class Tokens(torch.nn.Module):
            def __init__(self):
                super().__init__()
                own = getattr(transformers, head)
                self.model = (own.from_config if head == "AutoModel" else own._from_config)(config, attn_implementation=attention)

            def forward(self, input_ids, attention_mask):
                return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

        tokens = torch.randint(5, min(1000, config.vocab_size), (1, length))
        return Tokens(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    return build


def features(configuration, name, shape, head="AutoModel", part=None, **sizes):
    """A model of transformers over an image or sound."""

    def build():
        import torch
        import transformers

        config = getattr(transformers, configuration)(**sizes)

        class Features(torch.nn.Module):
            def __init__(self):
                super().__init__()
                model = getattr(transformers, head).from_config(config)
                self.model = getattr(model, part) if part else model

            def forward(self, data):
                return self.model(**{name: data})[0]

        return Features(), {"data": torch.randn(*shape)}

    return build


SMALL = dict(hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536)
DECODER = dict(SMALL, num_key_value_heads=2, vocab_size=8000)

MODELS = {
    # torchvision
    "resnet18": vision("resnet18"),
    "resnet50": vision("resnet50"),
    "mobilenet_v2": vision("mobilenet_v2"),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "efficientnet_b0": vision("efficientnet_b0"),
    "squeezenet1_1": vision("squeezenet1_1"),
    "shufflenet_v2_x1_0": vision("shufflenet_v2_x1_0"),
    "regnet_y_400mf": vision("regnet_y_400mf"),
    "densenet121": vision("densenet121"),
    "convnext_tiny": vision("convnext_tiny"),
    "swin_t": vision("swin_t"),
    "lraspp_mobilenet_v3_large": segmentation("lraspp_mobilenet_v3_large"),
    # timm
    "deit_tiny": timm("deit_tiny_patch16_224"),
    "mixer_s32": timm("mixer_s32_224"),
    "mobilevit_xs": timm("mobilevit_xs", 256),
    "edgenext_xx_small": timm("edgenext_xx_small", 256),
    "mobilenetv4_conv_small": timm("mobilenetv4_conv_small"),
    "ghostnet_100": timm("ghostnet_100"),
    "poolformer_s12": timm("poolformer_s12"),
    "levit_128": timm("levit_128"),
    "repvgg_a0": timm("repvgg_a0"),
    "fastvit_t8": timm("fastvit_t8", 256),
    "xcit_nano": timm("xcit_nano_12_p16_224"),
    "hrnet_w18_small": timm("hrnet_w18_small"),
    # transformers
    "bert": transformer("sdpa", "BertConfig", **SMALL),
    "bert_eager": transformer("eager", "BertConfig", **SMALL),
    "distilbert": transformer("sdpa", "DistilBertConfig", dim=384, n_layers=4, n_heads=6, hidden_dim=1536),
    "albert": transformer("sdpa", "AlbertConfig", embedding_size=128, **SMALL),
    "deberta_v2": transformer("eager", "DebertaV2Config", **SMALL),
    "gpt2": transformer("eager", "GPT2Config", n_embd=384, n_layer=4, n_head=6, vocab_size=8000),
    "opt": transformer(
        "eager", "OPTConfig", hidden_size=384, num_hidden_layers=4, num_attention_heads=6, ffn_dim=1536, vocab_size=8000,
        word_embed_proj_dim=384,
    ),
    "llama": transformer("eager", "LlamaConfig", **DECODER),
    "qwen2": transformer("sdpa", "Qwen2Config", **DECODER),
    "gemma": transformer("eager", "GemmaConfig", head_dim=64, **DECODER),
    "phi": transformer("eager", "PhiConfig", **dict(DECODER, num_key_value_heads=6)),
    "t5_encoder": transformer(
        "eager", "T5Config", head="T5EncoderModel", d_model=384, num_layers=4, num_heads=6, d_ff=1024, d_kv=64,
        feed_forward_proj="gated-gelu", vocab_size=8000,
    ),
    "vit": features("ViTConfig", "pixel_values", (1, 3, 224, 224), **SMALL),
    "dinov2": features("Dinov2Config", "pixel_values", (1, 3, 224, 224), **SMALL),
    "segformer": features("SegformerConfig", "pixel_values", (1, 3, 256, 256)),
    "wav2vec2": features("Wav2Vec2Config", "input_values", (1, 16000), **SMALL),
    "whisper_encoder": features(
        "WhisperConfig", "input_features", (1, 80, 3000), part="encoder", d_model=256, encoder_layers=4,
        encoder_attention_heads=4, encoder_ffn_dim=1024, decoder_layers=1, decoder_attention_heads=4,
    ),
}


def export(model, inputs, file, exporter):
    """Write `model.onnx` with its weights inside, and the inputs."""
    import torch

    names = list(inputs)
    arguments = tuple(inputs.values())
    options = dict(input_names=names, output_names=["output"], opset_version=OPSET)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            torch.onnx.export(model, arguments, file, dynamo=True, external_data=False, verbose=False, **options)
        else:
            torch.onnx.export(model, arguments, file, dynamo=False, **options)


def write_inputs(folder, inputs):
    from onnx import numpy_helper

    data = folder / "test_data_set_0"
    data.mkdir(exist_ok=True)
    for index, (name, tensor) in enumerate(inputs.items()):
        proto = numpy_helper.from_array(tensor.numpy(), name)
        (data / f"input_{index}.pb").write_bytes(proto.SerializeToString())


def make(folder, name, exporter):
    """The folder of a model, which is made where it is missing."""
    import torch

    own = folder / f"{name}.{exporter}"
    if (own / "test_data_set_0").exists():
        return own
    own.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    export(model.eval(), inputs, own / "model.onnx", exporter)
    write_inputs(own, inputs)
    return own


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--exporters", default=",".join(EXPORTERS))
    given = parser.parse_args()
    names = given.models.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"there is no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    missing = 0
    for exporter in given.exporters.split(","):
        if exporter not in EXPORTERS:
            parser.error(f"there is no exporter {exporter}; there are {', '.join(EXPORTERS)}")
        for name in names:
            try:
                print(make(given.folder, name, exporter), flush=True)
            except Exception as error:  # whatever an exporter raises: the model is missing, the others are not
                missing += 1
                reason = str(error).strip().splitlines() or [type(error).__name__]
                print(f"{name}.{exporter} is missing: {type(error).__name__}: {reason[0][:300]}", file=sys.stderr, flush=True)
    sys.exit(0 if missing == 0 else 3)


if __name__ == "__main__":
    main()

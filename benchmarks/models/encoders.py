"""Models of text and images as trees of structs: names and sizes of Flax's in Transformers, two layers."""

from .arrays import array, dense, kernel, layer_norm, layers, separate_attention, table


def clip():
    def tower(D, F):
        layer = {
            "self_attn": separate_attention(D),
            "layer_norm1": layer_norm(D),
            "mlp": {"fc1": dense(D, F), "fc2": dense(F, D)},
            "layer_norm2": layer_norm(D),
        }
        return {"layers": layers(layer)}

    return {
        "text_model": {
            "embeddings": {"token_embedding": table(49408, 512), "position_embedding": table(77, 512)},
            "encoder": tower(512, 2048),
            "final_layer_norm": layer_norm(512),
        },
        "vision_model": {
            "embeddings": {
                "class_embedding": array(768),
                "patch_embedding": kernel(32, 32, 3, 768),
                "position_embedding": table(50, 768),
            },
            "pre_layrnorm": layer_norm(768),
            "encoder": tower(768, 3072),
            "post_layernorm": layer_norm(768),
        },
        "text_projection": kernel(512, 512),
        "visual_projection": kernel(768, 512),
        "logit_scale": array(),
    }


def bert(D=768, F=3072, V=30522):
    embeddings = {
        "word_embeddings": table(V, D),
        "position_embeddings": table(512, D),
        "token_type_embeddings": table(2, D),
        "LayerNorm": layer_norm(D),
    }
    layer = {
        "attention": {
            "self": {name: dense(D, D) for name in ("query", "key", "value")},
            "output": {"dense": dense(D, D), "LayerNorm": layer_norm(D)},
        },
        "intermediate": {"dense": dense(D, F)},
        "output": {"dense": dense(F, D), "LayerNorm": layer_norm(D)},
    }
    predictions = {"transform": {"dense": dense(D, D), "LayerNorm": layer_norm(D)}, "bias": array(V)}
    return {
        "bert": {
            "embeddings": embeddings,
            "encoder": {"layer": layers(layer)},
            "pooler": {"dense": dense(D, D)},
        },
        "cls": {"predictions": predictions, "seq_relationship": dense(D, 2)},
    }


def roberta():
    tree = bert(V=50265)
    head = {"dense": dense(768, 768), "layer_norm": layer_norm(768), "bias": array(50265)}
    return {"roberta": tree["bert"], "lm_head": head}


def vit(D=768, F=3072):
    layer = {
        "attention": {
            "attention": {name: dense(D, D) for name in ("query", "key", "value")},
            "output": {"dense": dense(D, D)},
        },
        "intermediate": {"dense": dense(D, F)},
        "output": {"dense": dense(F, D)},
        "layernorm_before": layer_norm(D),
        "layernorm_after": layer_norm(D),
    }
    embeddings = {
        "cls_token": array(1, 1, D),
        "position_embeddings": array(1, 197, D),
        "patch_embeddings": {"projection": {"kernel": array(16, 16, 3, D), "bias": array(D)}},
    }
    return {
        "vit": {"embeddings": embeddings, "encoder": {"layer": layers(layer)}, "layernorm": layer_norm(D)},
        "classifier": dense(D, 1000),
    }


def multi_head_attention(D=768, H=12, K=64):
    """`MultiHeadDotProductAttention` of Flax, in Linen and in NNX."""

    def into_heads():
        return {"kernel": array(D, H, K), "bias": array(H, K)}

    return {
        "attention": {
            "query": into_heads(),
            "key": into_heads(),
            "value": into_heads(),
            "out": {"kernel": array(H, K, D), "bias": array(D)},
        }
    }


def mnist_cnn():
    return {
        "Conv_0": {"kernel": array(3, 3, 1, 32), "bias": array(32)},
        "Conv_1": {"kernel": array(3, 3, 32, 64), "bias": array(64)},
        "Dense_0": dense(3136, 256),
        "Dense_1": dense(256, 10),
    }

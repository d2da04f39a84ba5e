import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import dikkat
from dikkat.show import heatmaps, save

torch.manual_seed(0)
sizes = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 128}
config = LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3)
model = AutoModelForCausalLM.from_config(config).eval()  # or AutoModelForCausalLM.from_pretrained(...)
with dikkat.record(model, overview=64) as trace:
    model(torch.randint(500, (1, 64)))
maps = torch.stack([seen.overview[0] for _, _, seen in trace])
rows = maps / maps.amax(-1, keepdim=True)  # each row by its largest weight
save(heatmaps(rows, titles=[f"head {head}" for head in range(4)], ylabel="Words so far"), "llama.png")

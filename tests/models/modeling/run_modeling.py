# Runs an exported model by the modeling file in its folder, with PyTorch and the stand-in for transformers beside this
# file. Usage: python3 run_modeling.py TASKS, a JSON file with a list of
#   {"folder", "ids": [[...]], "mask": [[...]] or null, "labels": [[...]] or null, "dtype": "float64", "new_tokens": 0}
# Prints a JSON list of {"logits": (B, T, V), "loss": number or null, "text": ids with new_tokens of the likeliest more}.

import importlib.util
import json
import os
import struct
import sys

sys.dont_write_bytecode = True
import torch

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def tensors_of(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        dtype = DTYPES[tensor["dtype"]]
        yield name, torch.frombuffer(data[begin:end], dtype=dtype).reshape(tensor["shape"])


# A class that config.json names in auto_map: "modeling_thinpipe.ThinpipeConfig".
def class_of(folder, place):
    file, name = place.split(".")
    spec = importlib.util.spec_from_file_location(file, os.path.join(folder, file + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def load(folder, dtype):
    with open(os.path.join(folder, "config.json")) as file:
        keys = json.load(file)
    places = keys.pop("auto_map")
    config = class_of(folder, places["AutoConfig"])(**keys)
    model = class_of(folder, places["AutoModelForCausalLM"])(config)
    model.load_state_dict(dict(tensors_of(os.path.join(folder, "model.safetensors"))), strict=True)
    return model.to(getattr(torch, dtype)).eval()


def answer(task):
    model = load(task["folder"], task["dtype"])
    ids, mask, labels = (None if task[key] is None else torch.tensor(task[key]) for key in ("ids", "mask", "labels"))
    output = model(input_ids=ids, attention_mask=mask, labels=labels, return_dict=True)
    text = ids
    for _ in range(task["new_tokens"]):
        inputs = model.prepare_inputs_for_generation(text, attention_mask=mask, use_cache=False)
        text = torch.cat([text, model(**inputs, return_dict=True).logits[:, -1:].argmax(-1)], 1)
    loss = None if output.loss is None else output.loss.item()
    return {"logits": output.logits.double().tolist(), "loss": loss, "text": text.tolist()}


with open(sys.argv[1]) as tasks:
    asked = json.load(tasks)
with torch.no_grad():
    print(json.dumps([answer(task) for task in asked]))

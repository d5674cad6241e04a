"""Where the best tokens of ipuc and of onnxruntime-genai differ for the same text, and whether rounding explains it.

A model of codes may have activations rounded as it runs (`accuracy_level` 4 of `MatMulNBits`). The last bit of a sum then
decides here and there which code comes next, and one other code leads to others layer by layer: two programs that both do
what the model says have scores as far from each other as from exact ones. So tokens are expected to be the same where the
two best scores are further apart than rounding moves them.

Exact scores are those of ONNX Runtime in one pass, with sums of floats where the model asks for rounded activations. What
rounding does is measured at each position from onnxruntime-genai alone: the standard deviation of its errors over the
vocabulary, times the square root of 2, is that of the difference of two scores. A difference is explained if the two tokens
are at most 3 of these apart in exact scores and in those of onnxruntime-genai.
"""
import json, os, subprocess
import numpy as np
import onnx, onnxruntime
import onnxruntime_genai as genai

# Standard deviations that rounding is held to.
MOST_DEVIATIONS = 3.0


class Scores:
    """Scores of the programs for the texts of one folder."""

    def __init__(self, folder, model, program, file, scratch, threads):
        self.model, self.program, self.file, self.scratch, self.threads = model, program, file, scratch, threads
        with open(os.path.join(folder, "genai_config.json")) as config:
            self.decoder = json.load(config)["model"]["decoder"]
        path = os.path.join(folder, self.decoder["filename"])
        exact = onnx.load(path, load_external_data=False)
        attributes = [attribute for node in exact.graph.node for attribute in node.attribute]
        levels = [attribute for attribute in attributes if attribute.name == "accuracy_level"]
        if levels:
            onnx.load_external_data_for_model(exact, folder)
            for level in levels:
                level.i = 1
            path = os.path.join(scratch, "exact.onnx")
            onnx.save(exact, path, save_as_external_data=True, location="exact.onnx.data")
        self.exact_session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def genai(self, prompt, text):
        """Scores `[tokens, vocabulary]` of the tokens of a text, one token after the other."""
        parameters = genai.GeneratorParams(self.model)
        parameters.set_search_options(max_length=len(prompt) + len(text), do_sample=False)
        generator = genai.Generator(self.model, parameters)
        rows = []
        for tokens in [prompt] + [[token] for token in text[:-1]]:
            generator.append_tokens(tokens)
            rows.append(np.array(generator.get_logits(), np.float32)[0, -1])
        return np.stack(rows)

    def exact(self, prompt, text):
        """The same without rounded activations."""
        given, feed = inputs_of_pass(prompt + text[:-1]), {}
        for value in self.exact_session.get_inputs():
            cache = (1, self.decoder["num_key_value_heads"], 0, self.decoder["head_size"])
            empty = np.zeros(cache, np.float16 if "float16" in value.type else np.float32)
            feed[value.name] = given.get(value.name, empty)
        logits = self.exact_session.run(["logits"], feed)[0]
        return logits[0, len(prompt) - 1:].astype(np.float32)

    def ipuc(self, prompt, text):
        """The same of ipuc, in one pass: its bits do not depend on how tokens are cut into passes."""
        names = {value.name for value in self.exact_session.get_inputs()}
        output = os.path.join(self.scratch, "scores.npz")
        command = [self.program, "run", self.file, "--entry", "decode", "--threads", self.threads, "-q", "-o", output]
        for name, value in inputs_of_pass(prompt + text[:-1]).items():
            if name in names:
                path = os.path.join(self.scratch, f"{name}.npy")
                np.save(path, value)
                command += ["--input", f"{name}={path}"]
        subprocess.run(command, check=True, capture_output=True)
        with np.load(output) as outputs:
            return outputs["logits"][0, len(prompt) - 1:].astype(np.float32)


def inputs_of_pass(tokens):
    count = len(tokens)
    return {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, count), np.int64),
        "position_ids": np.arange(count, dtype=np.int64)[None],
    }


def deviation(scores, exact):
    """The standard deviation of the error of a difference of two scores, position by position."""
    return np.sqrt(2.0) * (scores - exact).std(axis=-1, dtype=np.float64)


class Differences:
    """Positions of texts where best tokens differ."""

    def __init__(self):
        self.positions, self.found, self.unexplained, self.genai, self.ipuc = 0, 0, 0, [], []

    def add(self, scores, tokenizer, prompt, text):
        """Print the positions of a text of onnxruntime-genai where the best token of ipuc is another; gives the first."""
        theirs, exact, ours = scores.genai(prompt, text), scores.exact(prompt, text), scores.ipuc(prompt, text)
        rounding = deviation(theirs, exact)
        self.positions += len(text)
        self.genai.append(rounding)
        self.ipuc.append(deviation(ours, exact))
        different = np.flatnonzero(theirs.argmax(-1) != ours.argmax(-1))
        for at in different:
            their, our = theirs[at].argmax(), ours[at].argmax()
            apart = [float(row[at, their] - row[at, our]) for row in (theirs, ours, exact)]
            deviations = max(abs(apart[0]), abs(apart[2])) / max(rounding[at], np.finfo(np.float32).eps)
            is_explained = deviations <= MOST_DEVIATIONS
            self.found += 1
            self.unexplained += not is_explained
            tokens = [tokenizer.decode([int(token)]) for token in (their, our)]
            print(f"  token {at}, {tokens[0]!r} or {tokens[1]!r}: {apart[0]:.4f} apart in onnxruntime-genai, {apart[1]:.4f} in "
                  f"ipuc, {apart[2]:.4f} in exact scores; rounding moves them by {rounding[at]:.4f}: "
                  f"{'explained' if is_explained else 'NOT EXPLAINED'} ({deviations:.1f} of it)")
        return int(different[0]) if len(different) else None

    def summary(self):
        """Print all; says whether each is explained."""
        medians = [np.median(np.concatenate(of)) for of in (self.genai, self.ipuc)]
        print(f"{self.positions - self.found} of {self.positions} best tokens are the same, {self.unexplained} of "
              f"{self.found} differences are not explained by rounding; it moves differences of scores by {medians[0]:.5f} "
              f"(onnxruntime-genai) and {medians[1]:.5f} (ipuc)")
        return self.unexplained == 0

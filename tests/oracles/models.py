"""The families of tools/make_oracles.py against the Python package transformers: the committed models
with texts that are in no file, and models with random configurations.

    python tests/oracles/models.py BUILD [COUNT [SEED]]
"""
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT + "/tools")
from make_oracles import GLM, KIMI, LENGTHS, MODELS, V32, YARN, dsa, golden, kimi, load, make, save_file  # noqa: E402


def random_experts(r):
    groups = r.choice([1, 1, 2, 4])
    size, keep = r.randint(2, 5), r.randint(1, groups)
    return dict(experts=groups * size, per=r.randint(1, min(4, keep * size)), width=r.randint(8, 140),
                shared=r.randint(1, 2), groups=groups, keep=keep)


def random_kimi(r, layers, shape):
    full = sorted(r.sample(range(1, layers + 1), r.randint(1, layers - 1)))
    config = kimi(layers, full, linear_heads=r.choice([1, 3, 5]), linear_dim=r.randint(4, 40), q=r.choice([None, 20]),
                  taps=r.randint(2, 5), **shape, **random_experts(r))
    return KIMI, config, ["mlp"] + ["small bf16"] * r.randint(0, 1)


def random_dsa(r, layers, shape):
    cls, rope = r.choice([V32, GLM]), dict(rope_type="default", rope_theta=10.0 ** r.randint(3, 7))
    if r.random() < .5:
        rope |= YARN | dict(rope_type="yarn", factor=r.choice([2, 8, 40]), beta_fast=r.choice([32, 16]),
                            beta_slow=r.choice([1, 2]), original_max_position_embeddings=r.choice([64, 512, 4096]))
    more = dict(rope_parameters=rope, rms_norm_eps=10.0 ** -r.randint(4, 7), norm_topk_prob=r.random() < .7,
                tie_word_embeddings=r.random() < .2)
    if cls is GLM and r.random() < .6:
        more["indexer_types"] = ["full"] + [r.choice(["full", "shared"]) for _ in range(layers - 1)]
    config = dsa(layers, dense=r.randint(0, layers), q=r.randint(10, 140), rope=shape["pe"],
                 index_heads=r.choice([7, 8, 9, 13]), index_dim=shape["pe"] + r.randint(0, 20), topk=r.randint(8, 60),
                 **{k: v for k, v in shape.items() if k != "pe"}, **random_experts(r), **more)
    return cls, config, r.choice([[], ["fp8"]])


def random_model(r):
    shape = dict(hidden=r.choice([33, 64, 100, 130, 150, 200]), inter=r.randint(10, 150), heads=r.choice([1, 2, 3, 5, 7]),
                 kv=r.randint(8, 140), nope=r.randint(1, 30), pe=2 * r.randint(1, 9), v=r.randint(1, 30))
    return r.choice([random_kimi, random_dsa, random_dsa])(r, r.randint(2, 4), shape)


def verify(build, folder, files):
    command = [build + "/firstlight", "verify", "--tolerance", "1e-4", folder, *files]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, open(folder + "/config.json").read())
    return done.returncode == 0


def main():
    build, *rest = sys.argv[1:]
    count, seed = (int(x) for x in (rest + ["60", "1"][len(rest):]))
    r, bad = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as tmp:
        files = [f"{tmp}/t{n}.safetensors" for n in LENGTHS]
        for name in MODELS:
            folder = f"{ROOT}/tests/data/{name}"
            model = load(folder)
            for path, n in zip(files, LENGTHS):
                save_file(golden(model, n, r)[0], path)
            bad += not verify(build, folder, files)
        for i in range(count):
            folder = f"{tmp}/{i}"
            make(folder, random_model(r), r.randrange(1 << 20), (1, 150))
            bad += not verify(build, folder, [f"{folder}/golden/t{n}.safetensors" for n in (1, 150)])
    print(f"{len(MODELS)} models and {count} random ones from seed {seed}: {bad} differ")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()

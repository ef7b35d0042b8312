# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's transforms, compiler and fake tensors do the same in a process that has loaded the library as in one that has
not: the library's dispatch key may be one of theirs. What this PyTorch does not have is left out of both.
"""
import json
import subprocess
import sys
import unittest


def results():
    """What each of them computes, as text."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    x, weight = torch.randn(4, 3), torch.randn(3, 3)

    def square(row):
        return (row @ weight).sin().square().sum()

    def vmap():
        return torch.func.vmap(square)(x)

    def nested_vmap():
        return torch.func.vmap(torch.func.vmap(torch.mul, in_dims=(0, None)), in_dims=(None, 0))(x[0], x[:, 0])

    def grad():
        return torch.func.grad(square)(x[0])

    def gradient_of_each_sample():
        return torch.func.vmap(torch.func.grad(square))(x)

    def jacrev():
        return torch.func.jacrev(lambda row: row @ weight)(x[0])

    def hessian():
        return torch.func.hessian(square)(x[0])

    def jvp():
        return torch.func.jvp(square, (x[0],), (x[1],))

    def functionalize():
        def in_place(value):
            value = value.clone()
            value[0].mul_(2)
            return value

        return torch.func.functionalize(in_place)(x)

    def compile_eagerly():
        return torch.compile(lambda value: (value @ weight).relu().sum(), backend="aot_eager")(x)

    def compiled_gradient():
        model = nn.Linear(3, 3)
        torch.compile(model, backend="aot_eager")(x).square().sum().backward()
        return model.weight.grad

    def fake_tensors():
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode() as mode:
            made = mode.from_tensor(x) @ mode.from_tensor(weight)
        return type(made).__name__, tuple(made.shape), made.dtype

    def plain_tensors_are_not_fake():
        return torch._C._is_fake_tensor(x) if hasattr(torch._C, "_is_fake_tensor") else None

    def export():
        return str(torch.export.export(nn.Linear(3, 2), (x,)).graph)

    def backward_after_transforms():
        leaf = x.clone().requires_grad_()
        (leaf * 2).sum().backward()
        return leaf.grad

    found = {}
    for each in (vmap, nested_vmap, grad, gradient_of_each_sample, jacrev, hessian, jvp, functionalize, compile_eagerly,
                 compiled_gradient, fake_tensors, plain_tensors_are_not_fake, export, backward_after_transforms):
        torch.manual_seed(2)
        try:
            found[each.__name__] = repr(each())
        except Exception as error:
            found[each.__name__] = f"{type(error).__name__}: {error}"
    return found


class Transforms(unittest.TestCase):
    maxDiff = None

    def test_are_the_same_beside_the_library(self):
        def run(first):
            program = f"{first}; import json, transforms_test; print(json.dumps(transforms_test.results()))"
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=200)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout.splitlines()[-1])

        plain, beside = run("import torch"), run("import cohort.torch")
        self.assertEqual(beside, plain)
        self.assertIn("tensor", plain["backward_after_transforms"])
        import torch

        if hasattr(torch, "func"):
            for name in ("vmap", "hessian", "jacrev", "functionalize"):
                self.assertIn("tensor", plain[name], f"{name} itself works")


if __name__ == "__main__":
    unittest.main()

"""Puts all kernels for one instruction set into one LLVM module and compiles it to an object file.

Knows which kernels there are; knows nothing of where compiled code is kept.
"""

import llvmlite.binding as llvm

from chairlift.execute.cpu.arena import SCRATCH_BYTES
from chairlift.execute.cpu.formats import FORMATS
from chairlift.execute.cpu.isa import SHAPES, Isa
from chairlift.execute.cpu.kernels import attention, gemm, interpreter, pointwise, probes, sampling
from chairlift.execute.cpu.kernels.dots import Avx2, Dots, Portable, Vnni
from chairlift.execute.cpu.kernels.emit import Module
from chairlift.execute.cpu.kernels.gemm import Target
from chairlift.execute.cpu.operations import KV_KINDS, OPERATIONS


def target_of(isa: Isa, triple: str, *, emulate: bool = False) -> Target:
    """What to compile for. `emulate` replaces dot-product instructions by plain arithmetic with the same operands."""
    shape = SHAPES[isa]
    dots: Dots
    if emulate or isa == "portable":
        dots = Portable(shape.lanes, unsigned=shape.flip)
    elif isa == "avx2":
        dots = Avx2()
    else:
        dots = Vnni(shape.lanes)
    family = triple.split("-")[0]
    pause = {"x86_64": "llvm.x86.sse2.pause", "aarch64": "llvm.aarch64.hint"}.get(family)
    clock = {"x86_64": "llvm.readcyclecounter", "aarch64": "llvm.readsteadycounter"}.get(family)
    return Target(isa, shape, dots, native_halves=isa != "portable", pause=pause, clock=clock)


def module_for(target: Target, triple: str, *, contiguous: bool) -> Module:
    """`contiguous`: attention finds keys and values by the first block of a row instead of through its table of blocks."""
    module = Module(triple)
    way = attention.Contiguous() if contiguous else attention.Paged()
    names = [gemm.add_gemm(module, target, form) for form in FORMATS]
    names += [pointwise.add_embed(module, target, form) for form in FORMATS]
    names += [pointwise.add_rotary(module, target, kv) for kv in KV_KINDS]
    names += attention.add_attention(module, target, KV_KINDS, way)
    finish = pointwise.add_round_row(module)
    names += [pointwise.add_activate(module, kind, finish) for kind in pointwise.ACTIVATIONS]
    names += [pointwise.add_norm(module, finish), pointwise.add_quantise(module, finish), sampling.add_sample(module)]
    names += [probes.add_read(module), probes.add_dot(module, target)]
    assert attention.SCRATCH_BYTES <= SCRATCH_BYTES
    assert sampling.scratch_bytes(0) <= SCRATCH_BYTES
    assert set(names) == set(OPERATIONS), "kernels and operation codes disagree"
    interpreter.add_interpreter(module, OPERATIONS, target)
    return module


def compile_object(module: Module, *, cpu: str, features: str) -> bytes:
    """The object file. `cpu` and `features` are LLVM's names."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(str(module.ir))
    parsed.verify()
    machine = llvm.Target.from_triple(module.ir.triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    # The vectors are written out already; what LLVM would add here is code that takes long to compile and is rarely entered.
    tuning.loop_vectorization = False
    tuning.slp_vectorization = False
    tuning.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(parsed, builder)
    return machine.emit_object(parsed)

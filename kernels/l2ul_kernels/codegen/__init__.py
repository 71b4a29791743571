"""Code generation: the kernel decorator, LLVM helpers, memory and threads of compiled code."""

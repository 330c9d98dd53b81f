/* Hides instruction sets from a program and all it starts: preloaded, it lets the processor fault on CPUID (arch_prctl,
 * Linux on x86-64, where the processor can) and answers without some bits; reads of /proc/cpuinfo go to another file.
 * Compiled by lesser_cpu.py, which defines CPUINFO (a path) and HIDDEN_* (bits of leaf 7). The C library has chosen its
 * own functions before. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { kSetCpuid = 0x1012 }; /* ARCH_CPUID_SET of asm/prctl.h */

static long allow_cpuid(int allowed) { return syscall(SYS_arch_prctl, kSetCpuid, allowed); }

static void answer(int number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* instruction = (const uint8_t*)registers[REG_RIP];
  (void)info;
  if (instruction[0] != 0x0f || instruction[1] != 0xa2) { /* not CPUID: a fault like any other */
    signal(number, SIG_DFL);
    return;
  }
  const uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX];
  uint32_t a, b, c, d;
  allow_cpuid(1);
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
  allow_cpuid(0);
  if (leaf == 7 && part == 0) {
    b &= ~HIDDEN_7_0_EBX;
    c &= ~HIDDEN_7_0_ECX;
    d &= ~HIDDEN_7_0_EDX;
  } else if (leaf == 7 && part == 1) {
    a &= ~HIDDEN_7_1_EAX;
    d &= ~HIDDEN_7_1_EDX;
  }
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor(101))) static void start(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &action, NULL);
  if (allow_cpuid(0)) {
    fputs("this processor or kernel cannot let CPUID fault, so that nothing can be hidden\n", stderr);
    _exit(125);
  }
}

static const char* seen(const char* path) { return path && !strcmp(path, "/proc/cpuinfo") ? CPUINFO : path; }

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, #name))
#define MODE(flags)                      \
  mode_t mode = 0;                       \
  if (flags & (O_CREAT | O_TMPFILE)) {   \
    va_list rest;                        \
    va_start(rest, flags);               \
    mode = va_arg(rest, mode_t);         \
    va_end(rest);                        \
  }

int open(const char* path, int flags, ...) {
  MODE(flags)
  return NEXT(int (*)(const char*, int, ...), open)(seen(path), flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE(flags)
  return NEXT(int (*)(const char*, int, ...), open64)(seen(path), flags, mode);
}
FILE* fopen(const char* path, const char* how) { return NEXT(FILE * (*)(const char*, const char*), fopen)(seen(path), how); }
FILE* fopen64(const char* path, const char* how) {
  return NEXT(FILE * (*)(const char*, const char*), fopen64)(seen(path), how);
}

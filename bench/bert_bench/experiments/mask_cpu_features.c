/* Hides instruction sets from a program and all it starts: preloaded, it lets the processor fault on CPUID (arch_prctl,
 * Linux on x86-64, where the processor can) and answers without some bits; reads of /proc/cpuinfo go to another file.
 * Compiled by mask_cpu_features.py, which defines CPUINFO (a path) and HIDDEN_* (bits of leaf 7). The C library has chosen its
 * own functions before; programs without it, or started with an environment of their own, see all; threads must not
 * block SIGSEGV. */
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

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, #name))

static struct sigaction theirs; /* what the program does about SIGSEGV, in the place of which ours stays */

static long allow_cpuid(int allowed) { return syscall(SYS_arch_prctl, kSetCpuid, allowed); }

static void answer(int number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* instruction = (const uint8_t*)registers[REG_RIP];
  if (info->si_code != SI_KERNEL || instruction[0] != 0x0f || instruction[1] != 0xa2) { /* a fault like any other */
    if (theirs.sa_flags & SA_SIGINFO) {
      theirs.sa_sigaction(number, info, context);
    } else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN) {
      theirs.sa_handler(number);
    } else {
      NEXT(int (*)(int, const struct sigaction*, struct sigaction*), sigaction)(number, &theirs, NULL);
      raise(number);
    }
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
  NEXT(int (*)(int, const struct sigaction*, struct sigaction*), sigaction)(SIGSEGV, &action, &theirs);
  if (allow_cpuid(0)) {
    fputs("this processor or kernel cannot let CPUID fault, so that nothing can be hidden\n", stderr);
    _exit(125);
  }
}

int sigaction(int number, const struct sigaction* action, struct sigaction* before) {
  if (number != SIGSEGV)
    return NEXT(int (*)(int, const struct sigaction*, struct sigaction*), sigaction)(number, action, before);
  const struct sigaction last = theirs;
  if (action) theirs = *action;
  if (before) *before = last;
  return 0;
}
sighandler_t signal(int number, sighandler_t handler) {
  if (number != SIGSEGV) return NEXT(sighandler_t (*)(int, sighandler_t), signal)(number, handler);
  const sighandler_t last = theirs.sa_handler;
  memset(&theirs, 0, sizeof theirs);
  theirs.sa_handler = handler;
  return last;
}

static const char* seen(const char* path) { return path && !strcmp(path, "/proc/cpuinfo") ? CPUINFO : path; }

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
int openat(int folder, const char* path, int flags, ...) {
  MODE(flags)
  return NEXT(int (*)(int, const char*, int, ...), openat)(folder, seen(path), flags, mode);
}
FILE* fopen(const char* path, const char* how) { return NEXT(FILE * (*)(const char*, const char*), fopen)(seen(path), how); }
FILE* fopen64(const char* path, const char* how) {
  return NEXT(FILE * (*)(const char*, const char*), fopen64)(seen(path), how);
}

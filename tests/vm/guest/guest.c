/* A guest of a few KB for the tests of the VM driver: booted by PVH in 32-bit mode, without interrupts, without paging. It
   says on the first serial port that it is up and then does what its host name says, which comes on the command line:
   off...    powers the machine off
   triple... faults three times, which restarts it (as a kernel does that cannot go on)
   crash...  jumps where no memory is, which no VMM can emulate
   chatty... writes to its console for ever
   others    do nothing */

typedef unsigned int u32;
typedef unsigned char u8;

static void out8(unsigned short port, u8 value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }

static void say(const char *text) {
  while (*text) out8(0x3f8, (u8)*text++);
}

static int begins(const char *text, const char *with) {
  while (*with)
    if (*text++ != *with++) return 0;
  return 1;
}

static const char *hostname(const char *line) {
  for (; *line; line++)
    if (begins(line, "shardplane.hostname=")) return line + 20;
  return "";
}

static void halt(void) {
  for (;;) __asm__ volatile("cli; hlt");
}

/* info: the start info of PVH; the physical address of the command line is at offset 24. */
void guest(const u8 *info) {
  const char *name = hostname((const char *)*(const u32 *)(info + 24));
  say("guest up: ");
  say(name);
  say("\n");
  if (begins(name, "off")) out8(0x600, 0x34); /* the sleep register of the reduced hardware ACPI */
  if (begins(name, "triple")) {
    struct { unsigned short limit; u32 base; } __attribute__((packed)) none = {0, 0};
    __asm__ volatile("lidt %0; ud2" : : "m"(none));
  }
  if (begins(name, "crash")) ((void (*)(void))0xfed00000u)();
  if (begins(name, "chatty"))
    for (;;) say("all work and no play makes a dull machine\n");
  halt();
}

__asm__(
    ".pushsection .note.pvh, \"a\", @note\n"
    ".long 4, 4, 18\n" /* XEN_ELFNOTE_PHYS32_ENTRY */
    ".asciz \"Xen\"\n"
    ".long start\n"
    ".popsection\n"
    ".pushsection .text\n"
    ".globl start\n"
    "start:\n"
    "  mov $stack_top, %esp\n"
    "  push %ebx\n"
    "  call guest\n"
    ".popsection\n"
    ".pushsection .bss\n"
    ".align 16\n"
    ".skip 4096\n"
    "stack_top:\n"
    ".popsection\n");

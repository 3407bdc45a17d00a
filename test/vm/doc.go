// Package vm runs the tests of sandboxes in virtual machines whose kernels have what the
// machine at hand may lack, or lack what it has: limits by cgroups, no Landlock, no user
// namespaces.
//
//	host                                        guest
//	 kernel of Debian, fetched by apt            /init, the test itself
//	 test binaries, static        ──initramfs──►   for each step of the plan:
//	 programs of this machine                        a user, a control group, settings
//	      ▲                                          a test binary
//	      └───────────serial console──────────────   how it ended
//
// It needs qemu-system-x86_64 and, unless a kernel is given, apt on amd64. It changes nothing
// on the machine but the folder that it works in. Without KVM the machine is emulated.
package vm

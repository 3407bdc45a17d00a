package check

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// rule is one of a seccomp profile.
type rule struct {
	Comment string   `json:"comment"`
	Names   []string `json:"names"`
	Action  string   `json:"action"`
	Args    []struct {
		Index int    `json:"index"`
		Value uint64 `json:"value"`
		Op    string `json:"op"`
	} `json:"args"`
}

// TestSeccomp_AllowsSandboxesAndLittleElse: engines and kubelets read the file as the runtime
// specification has it, which knows no other fields.
func TestSeccomp_AllowsSandboxesAndLittleElse(t *testing.T) {
	t.Parallel()
	file, err := os.Open("../../seccomp.json")
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	var profile struct {
		DefaultAction   string   `json:"defaultAction"`
		DefaultErrnoRet int      `json:"defaultErrnoRet"`
		Architectures   []string `json:"architectures"`
		Syscalls        []rule   `json:"syscalls"`
	}
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&profile))
	require.Equal(t, "SCMP_ACT_ERRNO", profile.DefaultAction)
	require.Subset(t, profile.Architectures, []string{"SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"})

	var allowed []string
	for _, r := range profile.Syscalls {
		require.Equal(t, "SCMP_ACT_ALLOW", r.Action)
		if len(r.Args) == 0 {
			allowed = append(allowed, r.Names...)
		}
	}
	slices.Sort(allowed)
	require.Len(t, slices.Compact(slices.Clone(allowed)), len(allowed), "each is named once")
	require.Subset(t, allowed, []string{
		"clone", "mount", "mount_setattr", "move_mount", "open_tree", "pivot_root", "sethostname", "umount2", "unshare", // makes sandboxes
		"execve", "futex", "landlock_restrict_self", "memfd_create", "seccomp",
	})
	for _, dangerous := range []string{
		"add_key", "bpf", "chroot", "delete_module", "fanotify_init", "finit_module", "fsopen", "init_module", "io_uring_setup", "kexec_load", "keyctl",
		"open_by_handle_at", "perf_event_open", "personality", "quotactl", "reboot", "request_key", "setns", "socket", "swapon", "syslog", "userfaultfd",
	} {
		require.NotContains(t, allowed, dangerous)
	}
}

// Package cgroup bounds sandboxes by control groups, version 2, where the system lets this
// process use them.
//
//	<delegated to this process>
//	├── toolfleet-worker        this process, if it was in the one above: processes and
//	│                           controllers do not go together in a group
//	└── toolfleet-RANDOM        the sandboxes of this process; locked while it lives
//	    ├── 1                   a sandbox: memory.max, pids.max, its share of the processors
//	    └── 2
//
// A group belongs to whom the system has given it, and systemd takes offence at others: only
// groups that were delegated are used (Delegate=yes), those of a container, and the whole
// hierarchy where no systemd runs. [Find] looks for one and says why there is none.
//
// A process is started in its group ([Group].Dir), so that limits hold for it from its
// first instruction. When memory runs out, the kernel kills the process of the group that
// holds most, and counts that ([Group.OOMKills]). memory.oom.group is not set: it would
// take all of a sandbox along, its first process too.
//
// The groups of a process that was killed are removed by the next one that looks: their lock is
// free then.
package cgroup

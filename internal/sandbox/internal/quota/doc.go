// Package quota bounds the disk space of sandboxes by project quotas of ext4 and XFS: the kernel
// counts all files of a project, and allocates no more than its limit. It takes root, a file system
// that enforces them (mount option prjquota), and no mount.
//
//	workspace ──┐ project id, inherited by everything   ┌─ limits: bytes, and how many files
//	            ├─────────────────────────────────────► │
//	scratch   ──┘ that is made below                    └─ usage, without a walk
//
// The number of a project is on the directories, and nowhere else: a directory that outlives its
// sandbox keeps it, so that the next one finds everything counted, and when it is removed the
// number is free. A number is free when nothing is counted for it and it has no limits. Numbers
// come from a range of their own ([First] to [Last]); those that the host has given names to
// (/etc/projid, /etc/projects) are left out, and a directory that belongs to a project of the
// host's is not taken from it. Two processes that take the same number at once notice, because each
// counts what it has brought.
//
// A project has limits while its sandbox is open. Those of a process that was killed stay, and are
// replaced when the directory is used again; when it was removed since, the next process removes
// them ([Open] the first time).
//
// Processes with the capability CAP_SYS_RESOURCE, such as the worker, are counted and not limited
// by quotas; and in the first user namespace the owner of a file may give it to another project. So
// quotas are for isolated commands.
package quota

// Package files implements [sandbox.FS] over an [os.Root].
//
// Confinement is the root's: every name is resolved by the kernel from the directory's descriptor,
// one component at a time, so that no symbolic link, and no swap of one while a call runs, leads
// outside. Nothing here checks a path first and opens it later by its name on the host.
//
//	request path ──clean──► relative name ──os.Root──► open, non-blocking
//	                │                        │              │
//	           path_escape,             path_escape   not_regular_file
//	           invalid_path              (symlink)    (FIFO, socket, device)
//
// An absolute link is followed when it begins with the workspace's own name: /workspace, or where
// it is in the view of whoever runs this.
//
// "." and ".." are resolved in the text of a path, before symbolic links are: a path names the same
// file here as in a resource key.
//
// Files change by rename of a complete temporary file beside them: a reader sees the old content or
// the new, and a failure leaves the old. This is about other processes, not about power: nothing is
// flushed to disk. Calls on different files may run side by side; of two calls that change one file
// at once, one change is lost, so callers order them.
//
// What an edit, a patch or a JSON value makes of a file's content is pure and lives in
// internal/change; what ignore files exclude, in internal/sandbox/internal/gitignore.
//
// Hard links cannot be told from files. Who makes one into the workspace could read the other file
// anyway.
package files

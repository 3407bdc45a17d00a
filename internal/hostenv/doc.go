// Package hostenv decides what a sandbox sees of the host's user, where a directory is worked on in
// place: the toolchains on the PATH, mounts of the user's choice, caches of package managers and
// compilers, and who commits; and which ways lead in and out: published ports, the user's SSH
// agent, and credentials of git.
//
//	PATH of the user ──► Find ──► toolchains: read-only parts, variables, a PATH of what is there
//	--mount          ──► ParseMount, Check ──► mounts, or a refusal that says what is allowed
//	--cache          ──► OpenCache ──► a directory of the project, locked while it is in use
//	git config       ──► Identity ──► GIT_AUTHOR_NAME, ...
//	--publish        ──► ParsePublication, Listen ──► connections, which the worker forwards
//	--ssh-agent, --git-credentials ──► Doors ──► sockets in the sandbox; each request is looked at here
//
// A toolchain is never a whole directory of the user's: of each kind it is known which parts
// programs need, and only those are shown, so that other files, such as tokens and settings, stay
// out. What commands may have written, the workspace, is never followed to elsewhere.
package hostenv

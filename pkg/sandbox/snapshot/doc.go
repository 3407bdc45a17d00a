// Package snapshot turns a workspace into an archive and back, and brings the changes
// of an archive into a directory that may have changed too.
//
//	directory ──Pack──► archive + Manifest      what was there
//	archive ──Unpack──► directory               the same bytes, modes and links
//	archive ──Sync────► directory, with the Manifest of its last Pack:
//
//	    archive against manifest   directory against manifest   then
//	    same                       anything                     left alone
//	    changed or new             same                         written
//	    missing                    same                         removed
//	    changed, new or missing    changed                      conflict, left alone
//
// but for places that [Options].Protect names, which are left alone in any case. A [Tree], whose
// contents are in [Bodies], does for an archive: of it only what changed is fetched ([SyncTree]).
//
// An archive is a tar stream compressed with zstd: directories, regular files and
// symbolic links, sorted, parents first, without owners. Other kinds of files are left
// out; hard links become files of their own. Names and link targets are bytes, not text.
//
// Every path is resolved by an [os.Root], so whatever an archive says and whoever changes
// the directory at the same time, nothing outside of it is read or written. An archive is
// hostile until it is read to its end: what it may contain is a short list, what it may
// cost is bounded by [Limits], and a truncated or damaged one is an error.
//
// Memory grows with the number and length of names, never with contents. Packing a
// directory in which something runs gives a well-formed archive of what was read;
// [Stats].Changed tells that it should be taken again when consistency matters.
package snapshot

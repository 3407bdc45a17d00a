// Package snapshot keeps what a workspace contains, and brings the changes of one into a directory
// that may have changed too.
//
//	directory ──Save────► Tree + Bodies      what is there; contents that are known are not stored
//	Tree ──────Restore──► directory          the same bytes, modes and links
//	Tree ──────Sync─────► directory, with the Manifest of the last Sync of the two:
//
//	    tree against manifest      directory against manifest   then
//	    same                       anything                     left alone
//	    changed or new             same                         written
//	    missing                    same                         removed
//	    changed, new or missing    changed                      conflict, left alone
//
// except for the paths of [Options].Protect, which are never changed. What is as in the
// manifest is not fetched.
//
// A tree has directories, regular files and symbolic links. Other kinds of files are left out; hard
// links become files of their own. Names and link targets are bytes, not text. Contents are in
// [Bodies], compressed with zstd.
//
// Every path is resolved by an [os.Root]: whatever a tree says, and even if another program changes
// the directory at the same time, nothing outside of it is read or written. A tree of others is
// hostile until [Tree.Validate] accepts it, and each content is checked against its sum.
//
// Memory grows with the number and length of names, never with contents. Saving a directory in
// which something runs keeps what was read; the next [Save] finds what changed meanwhile.
package snapshot

// Package offline finds, in a shell script that is about to run where there is no
// network, the commands that cannot work there.
//
// It is a courtesy to models: the sandbox is what keeps commands from the network, and
// does so whatever a script says. A model that is told before anything runs does not
// wait for time-outs, or take a failed download for a fault of its own. So the package
// errs on the side of silence. It names a command when the script itself, or the
// configuration of the git repository it is in, says that a host other than the
// sandbox's own is to be reached, or that a package manager is to fetch something. It
// says nothing about what it does not understand: variables, unknown programs and
// options, programs that the script defines itself, scripts that change the PATH.
// Words in quotes and here documents are words.
package offline

// Package check holds the tests of deploy/kubernetes. It is a module of its own, so that what
// builds and checks manifests is no dependency of toolfleet.
package check

// Package kube holds wopproxy to its promises in a real Kubernetes: images of the
// Dockerfile, started by a kubelet beside hosts that know nothing of it.
//
//	test/e2e/kube/run.sh              all scenarios
//	SUITE=quick test/e2e/kube/run.sh  the first one
//
// run.sh builds the cluster, starts it in namespaces of its own and runs these
// tests in it; anywhere else they skip. The program of the tests is also the
// server of MCP that the agents call.
package kube

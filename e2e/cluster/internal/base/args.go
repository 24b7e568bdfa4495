// Package base holds the common code of the light mode and the whole node:
// certificates, users, the flags of the control plane.
package base

import (
	"net/http"
	"time"
)

// Gates enables native gang scheduling: Workload and PodGroup objects and
// the scheduler that admits whole groups.
const Gates = "--feature-gates=GenericWorkload=true"

// AuditPolicy logs user, verb and object of each request twice: when it
// arrives, before it has any effect, and when it is answered. The effect may
// be visible before the second line is written; the first line announces it.
const AuditPolicy = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}
`

// AuditArgs makes the API server write an audit log. Blocking: no request is
// executed before its first line is in the file. The size prevents a rotation
// while the file is read.
func AuditArgs(policy, log string) []string {
	return []string{
		"--audit-policy-file=" + policy,
		"--audit-log-path=" + log,
		"--audit-log-format=json",
		"--audit-log-mode=blocking",
		"--audit-log-maxsize=1000000",
	}
}

// EtcdArgs starts a single etcd. Without fsync a crash of the machine may
// lose data; a crash of etcd does not.
func EtcdArgs(dir, client, peer string, fsync bool) []string {
	args := []string{
		"etcd",
		"--name=node",
		"--data-dir=" + dir,
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=node=" + peer,
		"--quota-backend-bytes=8589934592",
		"--auto-compaction-retention=5m",
		"--log-level=warn",
	}
	if !fsync {
		args = append(args, "--unsafe-no-fsync")
	}
	return args
}

// EtcdReady reports whether the etcd at the URL has a leader.
func EtcdReady(url string) bool {
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	res, err := client.Get(url + "/health")
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// APIServerArgs are the flags that do not depend on the mode. The files in
// pki are those that the certificate functions of this package write.
func APIServerArgs(pki, etcd string) []string {
	return []string{
		"kube-apiserver",
		"--etcd-servers=" + etcd,
		"--tls-cert-file=" + pki + "/apiserver.crt",
		"--tls-private-key-file=" + pki + "/apiserver.key",
		"--client-ca-file=" + pki + "/ca.crt",
		"--service-account-key-file=" + pki + "/sa.pub",
		"--service-account-signing-key-file=" + pki + "/sa.key",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--token-auth-file=" + pki + "/tokens.csv",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=true",
		"--runtime-config=scheduling.k8s.io/v1beta1=true",
		Gates,
	}
}

// ControllerManagerArgs are the flags that do not depend on the mode. Its
// default rate limit would dominate tests with many objects.
func ControllerManagerArgs(pki, kubeconfig string) []string {
	return []string{
		"kube-controller-manager",
		"--kubeconfig=" + kubeconfig,
		"--service-account-private-key-file=" + pki + "/sa.key",
		"--root-ca-file=" + pki + "/ca.crt",
		"--use-service-account-credentials=true",
		"--leader-elect=false",
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		Gates,
	}
}

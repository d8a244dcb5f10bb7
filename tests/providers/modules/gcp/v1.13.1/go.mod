module capelin/gcp

go 1.21

require sigs.k8s.io/cluster-api-provider-gcp v1.13.1

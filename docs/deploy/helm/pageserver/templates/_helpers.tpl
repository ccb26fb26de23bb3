{{- define "pageserver.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "pageserver.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pageserver.labels" -}}
{{ include "pageserver.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "pageserver.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pageserver.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "pageserver.name" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end }}

{{- define "pageserver.scheme" -}}
{{ if .Values.tls.enabled }}https{{ else }}http{{ end }}
{{- end }}

{{- define "pageserver.domain" -}}
{{ include "pageserver.name" . }}-headless.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* PAGECTL_SERVER: the management interfaces of all servers. */}}
{{- define "pageserver.servers" -}}
{{- $urls := list }}
{{- range $number := until (int .Values.replicas) }}
{{- $urls = append $urls (printf "%s://%s-%d.%s:9898" (include "pageserver.scheme" $) (include "pageserver.name" $) $number (include "pageserver.domain" $)) }}
{{- end }}
{{- join "," $urls }}
{{- end }}

{{/* PAGECTL_PAGE_SERVICE: the page services of all servers. */}}
{{- define "pageserver.pageServices" -}}
{{- $services := list }}
{{- $tls := ternary " sslmode=require" "" .Values.tls.enabled }}
{{- range $number := until (int .Values.replicas) }}
{{- $services = append $services (printf "host=%s-%d.%s port=64000 user=compute%s" (include "pageserver.name" $) $number (include "pageserver.domain" $) $tls) }}
{{- end }}
{{- join "," $services }}
{{- end }}

{{/* Settings that other values are for. */}}
{{- define "pageserver.ownSettings" -}}
{{- $own := dict "listen_pg_addr" "0.0.0.0:64000" "listen_http_addr" "0.0.0.0:9898" }}
{{- $_ := set $own "remote_storage" (required "bucket.url is needed, such as s3://BUCKET/PREFIX" .Values.bucket.url) }}
{{- with .Values.bucket.region }}{{ $_ := set $own "remote_storage_region" . }}{{ end }}
{{- with .Values.bucket.endpoint }}{{ $_ := set $own "remote_storage_endpoint" . }}{{ end }}
{{- if .Values.bucket.allowHttp }}{{ $_ := set $own "remote_storage_allow_http" true }}{{ end }}
{{- if .Values.bucket.secret }}{{ $_ := set $own "remote_storage_credentials_file" "/etc/pageserver/bucket/bucket.toml" }}{{ end }}
{{- if .Values.auth.enabled }}
{{- $_ := set $own "pg_auth_type" "JWT" }}
{{- $_ := set $own "http_auth_type" "JWT" }}
{{- $_ := set $own "auth_validation_public_key_path" "/etc/pageserver/keys" }}
{{- else }}
{{- $_ := required "auth.enabled, or auth.allowInsecure: anybody could read and delete everything" (.Values.auth.allowInsecure | ternary "true" "") }}
{{- $_ := set $own "allow_insecure_listen" true }}
{{- $name := include "pageserver.name" . }}
{{- $_ := set $own "allowed_hosts" (printf "%s,%s.%s,%s.%s.svc,%s.%s.svc.%s" $name $name .Release.Namespace $name .Release.Namespace $name .Release.Namespace .Values.clusterDomain) }}
{{- end }}
{{- if .Values.tls.enabled }}
{{- $_ := set $own "enable_tls_page_service_api" true }}
{{- $_ := set $own "enable_tls_http_api" true }}
{{- $_ := set $own "ssl_cert_file" "/etc/pageserver/tls/tls.crt" }}
{{- $_ := set $own "ssl_key_file" "/etc/pageserver/tls/tls.key" }}
{{- else if .Values.auth.enabled }}
{{- $_ := required "tls.enabled, or auth.allowPlaintextTokens: tokens could be read on the way" (.Values.auth.allowPlaintextTokens | ternary "true" "") }}
{{- $_ := set $own "allow_plaintext_tokens" true }}
{{- end }}
{{- toJson $own }}
{{- end }}

{{- define "pageserver.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pageserver.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What pagectl needs in pods that ask the servers. */}}
{{- define "pageserver.pagectlEnv" -}}
- {name: PAGECTL_SERVER, value: {{ include "pageserver.servers" . | quote }}}
{{- if .Values.tls.enabled }}
- {name: PAGECTL_CA_FILE, value: /etc/pageserver/tls/ca.crt}
{{- end }}
{{- if .Values.auth.enabled }}
- name: PAGECTL_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ required "standbys.tokenSecret is needed with auth.enabled" .Values.standbys.tokenSecret }}, key: token}
{{- end }}
{{- end }}


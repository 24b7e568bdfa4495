"""Serves a Maven repository with one artifact, and files for PySpark."""

import http.server
import os
import zipfile

os.makedirs("/tmp/site/maven/com/example/greeting/1.0")
os.chdir("/tmp/site")
artifact = "maven/com/example/greeting/1.0/greeting-1.0"
with zipfile.ZipFile(artifact + ".jar", "w") as jar:
    jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    jar.writestr("greeting.txt", "all aboard\n")
with open(artifact + ".pom", "w") as pom:
    pom.write(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>com.example</groupId><artifactId>greeting</artifactId><version>1.0</version></project>"
    )
with open("signals.py", "w") as module:
    module.write('COLOUR = "green"\n')
with open("words.txt", "w") as words:
    words.write("whistle\n")
http.server.ThreadingHTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()

# The command line `simrec`, without TensorFlow unless asked for:
#
#   docker build -t simrec .
#   docker build -t simrec --build-arg EXTRAS=[tensorflow,faiss] .
#   docker run --rm -v "$PWD:/data" -w /data simrec train --ratings ratings.parquet --out model

FROM python:3.12-slim
ARG EXTRAS=""
WORKDIR /src
COPY setup.py README.md LICENSE ./
COPY simrec simrec
RUN pip install --no-cache-dir ".${EXTRAS}" && rm -rf /src/*
RUN useradd --create-home simrec
USER simrec
ENTRYPOINT ["simrec"]
CMD ["--help"]

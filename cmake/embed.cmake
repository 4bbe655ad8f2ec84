# Writes a file's bytes as a C array: cmake -DFROM=page.html -DTO=page.c -DNAME=fl_page_html -P embed.cmake
file(READ "${FROM}" hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE "${TO}" "#include <stddef.h>\n"
     "extern const unsigned char ${NAME}[];\nextern const size_t ${NAME}_size;\n"
     "const unsigned char ${NAME}[] = {\n${hex}\n};\nconst size_t ${NAME}_size = sizeof ${NAME};\n")
